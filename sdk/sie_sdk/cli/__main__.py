"""``python -m sie_sdk.cli``: the same as ``sie``, for where no script is installed."""

from sie_sdk.cli import main

if __name__ == "__main__":
    main(prog_name="sie")
