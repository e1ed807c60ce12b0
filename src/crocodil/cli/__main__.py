"""`python -m crocodil.cli`."""

from crocodil.cli import main

main()
