"""The critic of preset `refined`: a kernel release, a denoiser pre-trained on its generator's samples, then DP-SGD."""
