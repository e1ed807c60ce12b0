"""Reproduce the paper's tables and figures: experiments compute rows of numbers, and the report shows them."""
