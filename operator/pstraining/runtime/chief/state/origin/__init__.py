"""What a saved state was computed with, and whether the program fits it: optimizers, words, and the order of data."""
