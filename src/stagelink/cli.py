"""The command line: ``stagelink``. Works, to the extent of an explanation, without its extra."""

from __future__ import annotations

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
    from stagelink.commands import app  # noqa: PLC0415

    app(prog_name="stagelink")


if __name__ == "__main__":
    main()
