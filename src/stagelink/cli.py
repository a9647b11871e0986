"""The command line: ``stagelink``. Works, to the extent of an explanation, without its extra."""

from __future__ import annotations

import logging
import sys

MISSING = 2


def main() -> None:
    """Run the command line; never returns."""
    try:
        import typer  # noqa: F401, PLC0415  an extra
        from rich import progress  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"stagelink: the command line needs {error.name}: pip install 'stagelink[cli]'\n"
        )
        sys.exit(MISSING)
    log_to_standard_error()
    from stagelink.commands import app  # noqa: PLC0415

    app(prog_name="stagelink")


def log_to_standard_error() -> None:
    """Warnings only: standard output, where structlog writes unless told, is for results."""
    import structlog  # noqa: PLC0415  not before the extra is known to be there

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


if __name__ == "__main__":
    main()
