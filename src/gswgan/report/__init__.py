"""A run on one page: the guarantee, the samples, what was released; on a private page also its utility."""
