"""``python -m mobopt``."""

from mobopt.commands import main

main()
