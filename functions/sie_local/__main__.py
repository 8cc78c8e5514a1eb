"""``python -m sie_local up``: the same as ``sie up``, for where no script is installed."""

from sie_sdk.cli import main

if __name__ == "__main__":
    main(prog_name="sie")
