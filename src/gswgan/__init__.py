"""gswgan: differentially private image synthesis with an epsilon one can check."""
