"""A register denoiser that starts from the demasker: registers and masked slots in one transformer, clean registers out."""
import math, torch
import torch.nn.functional as F
from torch import nn
from crocodil.models.demasker import Demasker
from crocodil.models.register_denoiser import time_features
from crocodil.processes.gaussian import signal_and_noise_level

class Joint(nn.Module):
    def __init__(self, demasker, slots, bos, num=16, max_sigma=2.9):
        super().__init__()
        self.dem = demasker; self.slots = slots; self.num = num; self.max_sigma = max_sigma; self.bos = bos
        W, D = demasker.config.backbone.width, demasker.config.register_width
        self.time = nn.Sequential(nn.Linear(256, W), nn.SiLU(), nn.Linear(W, 2 * W))
        nn.init.zeros_(self.time[2].weight); nn.init.zeros_(self.time[2].bias)
        self.head = nn.Linear(W, D); nn.init.zeros_(self.head.weight); nn.init.zeros_(self.head.bias)
        self.length = 256
        if slots: self.slot_embed = nn.Parameter(demasker.backbone.embed.weight[[bos] + [demasker.config.backbone.mask_id] * (slots - 1)].detach().float().clone())
    def angles(self, device):
        full = self.dem._angles(self.num, self.length, None, device)
        P = self.num + 2
        at = torch.arange(self.slots, device=device) * (self.length // max(self.slots, 1)) + P
        return torch.cat([full[:, :P], full[:, at]], 1)
    def forward(self, noisy, time, **_):
        """noisy: z_s (signal^2 + noise^2 = 1), time per register; returns the clean registers."""
        signal, noise = signal_and_noise_level(time)
        sigma = (noise / signal.clamp(min=1e-4))[..., None]
        unit = noisy.float() / signal.clamp(min=1e-4)[..., None]  # z + sigma n
        shrink = (1 + self.max_sigma ** 2) ** .5 / (1 + sigma.square()).sqrt()
        emb = self.dem._prefix((unit * shrink.clamp(max=1)).to(noisy.dtype), None)
        t = self.time(time_features(time).to(emb.dtype)); a, b = t.chunk(2, -1)
        first = emb[:, 1:1 + self.num] * (1 + a) + b
        parts = [emb[:, :1], first, emb[:, 1 + self.num:]]
        if self.slots: parts.append(self.slot_embed.to(emb.dtype)[None] + b.mean(1, keepdim=True))
        states = self.dem.backbone.transform(torch.cat(parts, 1), self.angles(noisy.device), None)[:, 1:1 + self.num]
        return (unit / (1 + sigma.square()) + self.head(states).float()).to(noisy.dtype)
