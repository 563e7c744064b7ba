"""The ensemble of critics (GS-WGAN): one network per partition of the data, computed as one batched model."""
