import torch


@torch.library.custom_op("acme::swish", mutates_args=())
def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


@swish.register_fake
def _(x):
    return torch.empty_like(x)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, gradient):
    (x,) = ctx.saved_tensors
    gate = torch.sigmoid(x)
    return gradient * (gate + x * gate * (1 - gate))


swish.register_autograd(_backward, setup_context=_keep)
