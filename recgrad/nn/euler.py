"""EulerNet's layer: products of learned orders, as sums of complex logarithms."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class EulerLayer(nn.Module):
    """From complex fields r + i·p to as many as there are order vectors α:

        λ_k = exp(Σ_j α_jk·log|z_j| + b_k),   θ_k = Σ_j α_jk·arg z_j + c_k
        r_k = relu(W r)_k + λ_k·cos θ_k,      p_k = relu(W p)_k + λ_k·sin θ_k

    so that λ·e^{iθ} = e^{b+ic}·Π_j z_j^{α_jk}, a product of any real order of each field. Orders start as
    the identity where the number of fields stays, else each near one field drawn at random.
    Tian et al. 2023, https://arxiv.org/abs/2304.10711

    Args:
        fields: fields of the input.
        out_fields: order vectors.
        dim: width of a field.
        use_ln: layer norms of the real and of the imaginary parts.
        explicit_dropout: of logarithms and arguments.
        implicit_dropout: before the linear layer.
    """

    def __init__(
        self,
        fields: int,
        out_fields: int,
        dim: int,
        *,
        use_ln: bool = False,
        explicit_dropout: float = 0.0,
        implicit_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        orders = torch.eye(fields)
        if fields != out_fields:
            orders = torch.softmax(torch.randn(fields, out_fields) / 0.01, dim=0)
        self.orders = nn.Parameter(orders)
        self.log_shift = nn.Parameter(0.01 * torch.randn(out_fields, dim))
        self.angle_shift = nn.Parameter(0.01 * torch.randn(out_fields, dim))
        self.linear = nn.Linear(fields * dim, out_fields * dim)
        nn.init.xavier_uniform_(self.linear.weight)
        self.norm_real = nn.LayerNorm(dim) if use_ln else nn.Identity()
        self.norm_imaginary = nn.LayerNorm(dim) if use_ln else nn.Identity()
        self.explicit_dropout, self.implicit_dropout = (
            nn.Dropout(explicit_dropout),
            nn.Dropout(implicit_dropout),
        )

    def forward(self, real: Tensor, imaginary: Tensor) -> tuple[Tensor, Tensor]:
        """Real and imaginary parts [rows, out_fields, dim] of those of the input [rows, fields, dim]."""
        rows, _, dim = real.shape
        logs = self.explicit_dropout(0.5 * torch.log(real * real + imaginary * imaginary + 1e-8))
        angles = self.explicit_dropout(torch.atan2(imaginary, real))
        orders = self.orders.t()
        size = torch.exp(orders @ logs + self.log_shift)
        angle = orders @ angles + self.angle_shift
        parts = []
        for part, product in ((real, torch.cos(angle)), (imaginary, torch.sin(angle))):
            mixed = torch.relu(self.linear(self.implicit_dropout(part.flatten(1))))
            parts.append(mixed.view(rows, self.orders.shape[1], dim) + size * product)
        return self.norm_real(parts[0]), self.norm_imaginary(parts[1])
