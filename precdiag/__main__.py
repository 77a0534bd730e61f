"""`python -m precdiag`."""

from precdiag.cli import main

if __name__ == "__main__":
    main()
