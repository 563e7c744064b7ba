"""A run on one page: the guarantee, the samples, what was released; and, for private eyes, what it is worth."""
