"""The field's text form of clicks: a label, 13 numbers and 26 categories in a line."""

NUMBERS, FEATURES = 13, 26
