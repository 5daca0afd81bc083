"""`python -m tacit`: the command line."""

from tacit.cli.main import entry

if __name__ == "__main__":
    entry()
