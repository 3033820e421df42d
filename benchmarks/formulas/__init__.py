"""Wrong forms of the package's formulas and bookkeeping, by the places in its files."""

from formulas.bookkeeping import BOOKKEEPING
from formulas.mathematics import MATHEMATICS

FORMULAS = (*MATHEMATICS, *BOOKKEEPING)
