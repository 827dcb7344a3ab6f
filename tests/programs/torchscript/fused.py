import torch


@torch.jit.script
def gated(x, scale: float):
    y = x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))
    return torch.sigmoid(y * scale) * y + torch.layer_norm(y, [y.size(-1)])
