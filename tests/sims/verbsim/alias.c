/* libibverbs.so, the name under which the engine asks first: empty, it only needs libibverbs.so.1.
 * Loaded before the engine, it keeps an installed libibverbs-dev from getting in between. */
typedef int this_unit_is_not_empty;
