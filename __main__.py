"""``python -m palaestra`` is the command ``palaestra``."""

from .runtime.cli.main import main

main()
