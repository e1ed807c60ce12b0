"""Distribution matching: a student that draws registers in few steps, so that what it draws with noise has the density of the data.

Levels s_1 > ... > s_K > s_out (noise over signal; s_1 is pure noise). Step k reads z + s_k n and predicts z; then fresh noise s_{k+1} is added.
Step k only has to be right with noise s_{k+1} and above."""
import math, torch, torch.nn.functional as F
from torch import nn
from crocodil.processes.gaussian import time_of_noise, add_noise, signal_and_noise_level

class Critic(nn.Module):
    """The fake denoiser with a second head: real or drawn."""
    def __init__(self, denoiser, gan):
        super().__init__(); self.net = denoiser; w = denoiser.config.width; self.states = None
        self.head = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, w), nn.SiLU(), nn.Linear(w, 1)) if gan else None
        denoiser.proj_out.register_forward_pre_hook(self._keep)
    def _keep(self, module, args): self.states = args[0]
    def forward(self, z, t):
        p = self.net(z, t)
        return p, (self.head(self.states).float().mean((1, 2)) if self.head is not None else None)

class Matching:
    def __init__(self, student, teacher, critic, levels, *, gan=0.0, gen=None, power=1.0, autocast=None):
        self.student, self.teacher, self.critic, self.gan, self.power = student, teacher, critic, gan, power
        self.times = [1.0] + [time_of_noise(s) for s in levels]  # K + 1 times; the last is where draws stop
        self.K = len(levels); self.autocast = autocast
    def normal(self, like, g): return torch.randn(like.shape, generator=g, device=like.device)
    def at(self, k, like): return torch.full(like.shape[:2], self.times[k], device=like.device)
    @torch.no_grad()
    def chain(self, n, shape, g, dev, steps=None):
        """Inputs z_s of every step, their clean predictions; and the registers over signal where the draw stops."""
        z = torch.randn((n, *shape), generator=g, device=dev); ins, outs = [], []
        for k in range(steps or self.K):
            ins.append(z); t = self.at(k, z)
            with self.autocast(): x = self.student(z, t).float()
            outs.append(x); z = add_noise(x, self.at(k + 1, x), self.normal(x, g))
        signal, _ = signal_and_noise_level(self.at((steps or self.K), z))
        return ins, outs, z / signal[..., None]
    def draw_times(self, low, g):
        """Times between low (per sample) and pure noise."""
        u = torch.rand(low.shape, generator=g, device=low.device) ** self.power
        return low + (0.985 - low) * u
    def critic_loss(self, fake, low, real, g):
        t = self.draw_times(low, g)[:, None].expand(fake.shape[:2])
        with self.autocast():
            p, logit = self.critic(add_noise(fake, t, self.normal(fake, g)), t)
            _, rlogit = self.critic(add_noise(real, t, self.normal(real, g)), t) if self.gan else (None, None)
        loss = (p.float() - fake).square().mean(); stats = dict(fake=loss.detach())
        if self.gan:
            d = F.softplus(logit).mean() + F.softplus(-rlogit).mean(); stats |= dict(d=d.detach(), acc=((logit < 0).float().mean() + (rlogit > 0).float().mean()).detach() / 2)
            loss = loss + 0.3 * d
        return loss, stats
    def student_step(self, z, k, g):
        """Backward through the student for inputs z of steps k (per sample)."""
        times = torch.tensor(self.times, device=z.device); t = times[k][:, None].expand(z.shape[:2])
        with self.autocast(): x = self.student(z, t)
        x = x.float(); low = times[k + 1]; s = self.draw_times(low, g)[:, None].expand(z.shape[:2])
        leaf = x.detach().requires_grad_(bool(self.gan)); noisy = add_noise(leaf, s, self.normal(x, g))
        with torch.no_grad(), self.autocast(): real = self.teacher(noisy.detach(), s).float()
        if self.gan:
            with self.autocast(): fake, logit = self.critic(noisy, s)
            ggan, = torch.autograd.grad(F.softplus(-logit).sum(), leaf); fake = fake.detach().float()
        else:
            with torch.no_grad(), self.autocast(): fake = self.critic(noisy, s)[0].float()
        diff = fake - real; scale = (leaf.detach() - real).abs().mean((1, 2), keepdim=True)
        grad = diff / scale.clamp(min=1e-3); stats = dict(dm=diff.square().mean().sqrt(), scale=scale.mean())
        if self.gan:
            ratio = grad.norm() / ggan.norm().clamp(min=1e-8); grad = grad + self.gan * ratio * ggan
        x.backward(grad / grad.numel())
        return stats
