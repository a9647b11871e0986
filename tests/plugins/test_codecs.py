"""A third party's types, by a codec that its plugin registers."""

from __future__ import annotations

import sys
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.compose import compose
from stagelink.core.errors import ConfigError, PayloadError
from stagelink.plugins import Manager, TypeCodec, hookimpl
from stagelink.plugins.conformance.connector import eventually, is_whole

torch = pytest.importorskip("torch", reason="these values are tensors, and torch is an extra")


class Cache:
    """What a library might call its key-value cache; no dataclass, so not ours to take apart."""

    def __init__(self, keys: Any, note: str) -> None:
        self.keys = keys
        self.note = note

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Cache) and self.note == other.note
        return same and bool((self.keys == other.keys).all())  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


class Plugin:
    """Contributes these codecs."""

    def __init__(self, *codecs: Any, name: str = "toolbox") -> None:
        self.__name__ = name
        self._codecs = codecs

    @hookimpl
    def stagelink_codecs(self) -> list[Any]:
        return list(self._codecs)


CACHE = TypeCodec(
    "toolbox.cache", Cache, lambda c: {"keys": c.keys, "note": c.note}, lambda d: Cache(**d)
)
FRACTION = TypeCodec(
    "fraction", "fractions:Fraction",
    lambda f: (f.numerator, f.denominator), lambda pair: Fraction(*pair),
)  # fmt: skip


def serializer(*codecs: TypeCodec) -> PayloadSerializer:
    return PayloadSerializer(codecs=Manager([Plugin(*codecs)]).codecs.values())


def dumped(value: Any, by: PayloadSerializer) -> bytearray:
    staged = by.stage(value)
    data = bytearray(staged.size)
    staged.write(memoryview(data))
    return data


def there_and_back(value: Any, by: PayloadSerializer) -> Any:
    data = dumped(value, by)
    return by.load(data, len(data))


@pytest.mark.parametrize("backend", ["shm", "memory"])
def test_a_value_of_a_foreign_type_arrives_with_its_tensors_out_of_band(backend: str) -> None:
    manager = Manager([Plugin(CACHE)])
    cache = Cache(torch.arange(60_000), "layer 3")
    common = {"backend": backend, "pool_bytes": 8 << 20}
    with (
        compose({"stage": "prefill", "role": "sender", **common}, manager) as tx,
        compose(
            {"stage": "decode", "role": "receiver", "sender": tx.endpoint, **common}, manager
        ) as rx,
    ):
        tx.put("k", {"caches": [cache, cache]}, to="decode")
        payload = rx.get("k", source="prefill", timeout=10)
        got = payload.value["caches"]
        assert got == [cache, cache]

        payload.close()
        keys = got[1].keys
        del got
        assert rx.health()["views"] == 1  # the tensor inside is a view of the payload
        del keys
        assert eventually(lambda: is_whole(rx))


def test_codecs_nest_in_containers_and_in_each_other() -> None:
    both = serializer(CACHE, FRACTION)
    value = {"a": [Fraction(1, 3), (Fraction(10**30, 7),)], "c": Cache(np.arange(5), "x")}
    deep = Cache(np.arange(3), Fraction(2, 5))  # type: ignore[arg-type]

    assert there_and_back(value, both) == value
    assert there_and_back(deep, both) == deep


def test_a_type_named_in_words_is_found_without_importing_it() -> None:
    codec = TypeCodec("far", "a_module_of_nobody:Outer.Inner", lambda v: v.x, lambda x: ("far", x))
    by = serializer(codec)
    assert there_and_back([1], by) == [1]
    assert "a_module_of_nobody" not in sys.modules
    names = {"__module__": "a_module_of_nobody", "__qualname__": "Outer.Inner"}
    inner = type("Inner", (SimpleNamespace,), names)

    assert there_and_back(inner(x=7), by) == ("far", 7)


def test_a_codec_is_for_its_very_type_and_no_subclass() -> None:
    class Special(Cache):
        """Has more than its parent's codec knows of."""

    with pytest.raises(PayloadError, match=r"value\['s'\].*Special"):
        serializer(CACHE).stage({"s": Special(None, "")})


def test_a_codec_goes_before_what_we_would_do_with_a_class_of_that_kind() -> None:
    assert there_and_back(Fraction(1, 2), serializer(FRACTION)) == Fraction(1, 2)
    with pytest.raises(PayloadError, match="Fraction"):
        serializer().stage(Fraction(1, 2))


# --- errors ----------------------------------------------------------------------------------


def test_a_codec_that_the_receiver_lacks_is_named() -> None:
    data = dumped({"x": Fraction(1, 2)}, serializer(FRACTION))

    with pytest.raises(PayloadError, match=r"codec 'fraction', which is not registered here") as c:
        serializer(CACHE).load(data, len(data))
    assert c.value.remedy == "install its plugin on this side too; known: toolbox.cache"
    with pytest.raises(PayloadError, match="not registered"):
        PayloadSerializer().load(data, len(data))


def test_a_failing_encode_names_plugin_path_and_cause() -> None:
    by = serializer(CACHE._replace(encode=lambda _: 1 // 0))

    with pytest.raises(PayloadError) as caught:
        by.stage({"caches": [Cache(1, "")]})
    assert caught.value.message == (
        "codec 'toolbox.cache' of plugin 'toolbox' cannot encode value['caches'][0]: "
        "ZeroDivisionError: integer division or modulo by zero"
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("kind", [ValueError, TypeError, KeyError, RecursionError])
def test_a_failing_decode_names_plugin_and_cause(kind: type[Exception]) -> None:
    def fail(_: object) -> None:
        raise kind("of another shape")

    data = dumped([Cache(1, "")], serializer(CACHE))

    with pytest.raises(PayloadError, match=r"plugin 'toolbox' cannot decode.*another") as caught:
        there = serializer(CACHE._replace(decode=fail))
        there.load(data, len(data))
    assert isinstance(caught.value.__cause__, kind)


def test_what_encode_made_must_be_something_that_can_be_put() -> None:
    with pytest.raises(PayloadError, match=r"value\[0\]\['keys'\].*object"):
        serializer(CACHE).stage([Cache(object(), "")])


def test_a_codec_that_encodes_to_its_own_type_ends() -> None:
    with pytest.raises(PayloadError, match="nested deeper than 100"):
        serializer(CACHE._replace(encode=lambda c: c)).stage(Cache(1, ""))


def test_two_codecs_of_one_name_are_refused_with_both_plugins() -> None:
    with pytest.raises(ConfigError, match="fraction") as caught:
        Manager([Plugin(FRACTION), Plugin(FRACTION, name="other")])
    assert "'toolbox'" in str(caught.value)
    assert "'other'" in str(caught.value)


@pytest.mark.parametrize("second", [Fraction, "fractions:Fraction"])
def test_two_codecs_for_one_type_are_refused_with_both_plugins(second: Any) -> None:
    again = FRACTION._replace(name="ratio", type=second)
    manager = Manager([Plugin(FRACTION), Plugin(again, name="other")])

    with pytest.raises(ConfigError, match="both have a codec for fractions:Fraction") as caught:
        compose({"stage": "a", "role": "sender", "backend": "memory"}, manager)
    assert "'toolbox'" in str(caught.value)
    assert "'other'" in str(caught.value)


@pytest.mark.parametrize("native", [dict, int, "builtins:list", torch.Tensor, np.ndarray])
def test_a_codec_for_what_travels_as_it_is_is_refused(native: Any) -> None:
    with pytest.raises(ConfigError, match="plugin 'toolbox' is for"):
        serializer(CACHE._replace(type=native))


@pytest.mark.parametrize("name", ["", "n" * 65])
def test_a_name_is_short_and_there(name: str) -> None:
    with pytest.raises(ConfigError, match="'toolbox' contributes a name"):
        Manager([Plugin(CACHE._replace(name=name))])


def test_a_plugin_whose_hook_fails_harms_nobody_else() -> None:
    class Broken:
        __name__ = "wreck"

        @hookimpl
        def stagelink_codecs(self) -> list[TypeCodec]:
            msg = "no hammer"
            raise RuntimeError(msg)

    manager = Manager([Broken(), Plugin(CACHE)])

    assert set(manager.codecs) == {"toolbox.cache"}
    assert str(manager.broken["wreck"]) == "no hammer"
    assert CACHE._replace(plugin="toolbox") == manager.codecs["toolbox.cache"]


@pytest.mark.parametrize("items", [[], ["fraction"], [1, 2], ["fraction", 1, 2], "fraction"])
def test_a_malformed_extension_is_refused(items: Any) -> None:
    import msgspec

    from stagelink.adapters.msgspec.leaves import CODEC
    from stagelink.core.payload import pack_prefix, plan

    header = msgspec.msgpack.encode(msgspec.msgpack.Ext(CODEC, msgspec.msgpack.encode(items)))
    layout = plan(len(header), [])
    data = bytearray(pack_prefix(layout) + header)

    with pytest.raises(PayloadError, match="expected in the header"):
        serializer(FRACTION).load(data, len(data))
