"""`python -m walferry.cli`: the command `walferry`."""

from walferry.cli import main

if __name__ == "__main__":
    main()
