"""``python -m akadze`` is the command ``akadze``."""

from __future__ import annotations

from akadze.cli import main

if __name__ == "__main__":
    main()
