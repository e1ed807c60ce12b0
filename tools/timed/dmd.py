"""dmd.py NAME UNTIL gan=.. levels=..: train a student of few steps from the denoiser jbm; banks of 1,000 draws into W/banks/NAME-NOISE.pt."""
import sys, time, json, math, copy, os, contextlib, torch, numpy as np
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
from matching import Matching, Critic
from crocodil.checkpoints.format import load_model, save_model
from crocodil.processes.gaussian import time_of_noise, signal_and_noise_level, add_noise, ddim_step
from crocodil.processes.registers import normalise
from crocodil.training.optimisers import Muon, hidden_matrices
torch._dynamo.config.recompile_limit = 64; torch._dynamo.config.cache_size_limit = 64
W = Path(os.environ.get('W', '/tmp/w')); T0 = int((W / 't0').read_text()); now = lambda: time.time() - T0
name, until = sys.argv[1], float(sys.argv[2]); o = dict(a.split('=') for a in sys.argv[3:])
dev = 'cuda' if torch.cuda.is_available() else 'cpu'; N = int(o.get('n', 128)); GAN = float(o.get('gan', 0)); LR = float(o.get('lr', 3e-4)); CLR = float(o.get('clr', 5e-4)); ND = int(o.get('draws', 1000)); NV = int(o.get('val', 4096)); CB = int(o.get('critics', 2))
WARM = int(o.get('warm', 20)); levels = [float(x) for x in o.get('levels', '3.5,2.1,1.4,1.0').split(',')]
autocast = lambda: torch.autocast(dev, torch.bfloat16, enabled=dev == 'cuda')
def load(split):
    f = next((W / 'run').rglob(f'*{split}*256*/registers.npy'), None) or next((W / 'run').rglob(f'*{split}*/registers.npy')); print('file', f, flush=True)
    return torch.from_numpy(np.array(np.load(f, mmap_mode='r'))).to(dev)
train, valid = load('train'), load('valid')[:NV].float(); shape = tuple(valid.shape[1:]); K = len(levels)
teacher = load_model(W / 'jbm/denoiser', dtype=torch.float32, device=dev).eval().requires_grad_(False)
student = copy.deepcopy(teacher).train().requires_grad_(True); critic = Critic(copy.deepcopy(teacher).train().requires_grad_(True), GAN > 0).to(dev)
if dev == 'cuda':
    for m in (teacher, student, critic.net):
        for b in m.repeated_blocks: b.compile(dynamic=False)
M = Matching(student, teacher, critic, levels, gan=GAN, power=float(o.get('power', 1.5)), autocast=autocast)
g = torch.Generator(dev).manual_seed(int(o.get('seed', 0)))
def optimiser(m, net, lr):
    hid = hidden_matrices(net.repeated_blocks); ps = [p for p in m.parameters() if p.requires_grad]
    return ps, Muon([dict(params=[p for p in ps if p in hid], hidden=True, weight_decay=.01), dict(params=[p for p in ps if p not in hid], hidden=False)], lr=lr, betas=(.9, .95))
ps, opt = optimiser(student, student, LR); cps, copt = optimiser(critic, critic.net, CLR); ema = [p.detach().clone() for p in ps]
B = N * K; ks = torch.arange(K, device=dev).repeat_interleave(N); times = torch.tensor(M.times, device=dev)
@torch.no_grad()
def features(z, sigma):
    """The teacher's prediction for registers with noise, in pieces of B."""
    t = torch.full(z.shape[:2], time_of_noise(sigma), device=dev); signal = signal_and_noise_level(t)[0][..., None]; out = []
    for i in range(0, len(z), B):
        part = z[i:i+B]; n = len(part); part = torch.cat([part, part[:1].expand(B - n, -1, -1)]) if n < B else part
        with autocast(): out.append(teacher(part * signal[:1], t[:1].expand(B, -1)).float()[:n])
    return torch.cat(out)
def frechet(a, b):
    a, b = a.flatten(1).double(), b.flatten(1).double(); ca, cb = torch.cov(a.T), torch.cov(b.T)
    w, v = torch.linalg.eigh(ca); r = (v * w.clamp(min=0).sqrt()) @ v.T
    return ((a.mean(0) - b.mean(0)).square().sum() + ca.trace() + cb.trace() - 2 * torch.linalg.eigvalsh(r @ cb @ r).clamp(min=0).sqrt().sum()).item()
@torch.no_grad()
def teacher_draws(n, steps, sigma, seed):
    gg = torch.Generator(dev).manual_seed(seed); end = time_of_noise(sigma); outs = []
    tt = [1 + (end - 1) * i / steps for i in range(steps + 1)]  # in even steps of unshifted time 0.5
    sh = lambda t: .5 * t / (1 - .5 * t); e = end / (.5 + .5 * end); tt = [sh(1 + (e - 1) * i / steps) for i in range(steps + 1)]
    for i in range(0, n, B):
        z = torch.randn((B, *shape), generator=gg, device=dev)
        for a, b in zip(tt, tt[1:]):
            ta, tb = (torch.full((B, shape[0]), x, device=dev) for x in (a, b))
            with autocast(): x = teacher(z, ta).float()
            z = ddim_step(z, x, ta, tb, eta=1.0, fresh=torch.randn(z.shape, generator=gg, device=dev))
        outs.append(z / signal_and_noise_level(tb)[0][..., None])
    return torch.cat(outs)[:n]
@torch.no_grad()
def draws(n, steps, seed):
    gg = torch.Generator(dev).manual_seed(seed); return torch.cat([M.chain(B, shape, gg, dev, steps=steps)[2] for _ in range(-(-n // B))])[:n]
OUT = levels[-1]; gv = torch.Generator(dev).manual_seed(77); noised = lambda z: z + OUT * torch.randn(z.shape, generator=gv, device=dev)
ref = features(noised(valid), OUT)
def typical(z):
    """Mean squared length of the prediction: how sure the teacher is."""
    return f.square().mean().item() if (f := z) is not None else 0
def report(label, f): print(f'{name} t={now():.0f} {label}: frechet to valid {frechet(f, ref):.1f}, length {f.square().mean().item():.4f}', flush=True)
report('train programs', features(noised(train[:len(valid)].float()), OUT)); print('valid length', ref.square().mean().item(), flush=True)
if o.get('compare', '1') == '1':
    for s in (8, 16): report(f'teacher {s} steps', features(teacher_draws(len(valid), s, OUT, 5), OUT))
def with_ema():
    @contextlib.contextmanager
    def c():
        kept = [p.detach().clone() for p in ps]
        for p, e in zip(ps, ema): p.data.copy_(e)
        yield
        for p, e in zip(ps, kept): p.data.copy_(e)
    return c()
report('student at 0', features(draws(len(valid), K, 5), OUT))
begin = now(); step = 0; log = []; STEPS = int(o.get('steps', 10**9)); last = now(); decay_from = begin + .5 * (until - begin)
def freeze(on):
    for p in cps: p.requires_grad_(not on)
while now() < until and step < STEPS:
    ins, outs, _ = M.chain(N, shape, g, dev); z, fake = torch.cat(ins), torch.cat(outs); st = {}
    for _ in range(CB if step > WARM else 4):
        order = torch.randperm(B, generator=g, device=dev); real = train[torch.randint(len(train), (B,), generator=g, device=dev)].float() if GAN else None
        l, s = M.critic_loss(fake[order], times[ks[order] + 1], real, g); l.backward(); torch.nn.utils.clip_grad_norm_(cps, 1.0); copt.step(); copt.zero_grad(set_to_none=True); st |= s
    if step > WARM:
        freeze(True); st |= M.student_step(z, ks, g); freeze(False)
        st['norm'] = torch.nn.utils.clip_grad_norm_(ps, 1.0)
        lr = LR * min(1, (step - WARM) / 50) * min(1, max(0, (until - now()) / (until - decay_from)))
        for gr in opt.param_groups: gr['lr'] = lr
        opt.step(); opt.zero_grad(set_to_none=True)
    step += 1; d = min(.99, (1 + step) / (10 + step)); torch._foreach_lerp_(ema, [p.detach() for p in ps], 1 - d)
    log.append({a: b.detach() for a, b in st.items()})
    if step in (1, 2, 25) or now() - last > 60:
        last = now(); mean = {a: round(torch.stack([x[a].float() for x in log if a in x]).mean().item(), 4) for a in log[-1]}; log = []
        print(f'{name} t={now():.0f} step {step} {mean}', flush=True)
        if step > 25:
            with with_ema(): report(f'step {step}', features(draws(len(valid), K, 5), OUT))
for p, e in zip(ps, ema): p.data.copy_(e)
report(f'end, {step} steps', features(draws(len(valid), K, 5), OUT)); (W / 'banks').mkdir(exist_ok=True)
for k in range(max(K - 2, 1), K + 1):
    bank = draws(ND, k, 11); sigma = levels[k - 1]
    torch.save((normalise(bank) * math.sqrt(1 + sigma**2)).half().cpu(), W / f'banks/{name}-{sigma}.pt')
torch.save((normalise(teacher_draws(ND, 16, OUT, 11)) * math.sqrt(1 + OUT**2)).half().cpu(), W / f'banks/teacher-{OUT}.pt')
student.eval(); save_model(student, W / f"student-{name}", bits=8)
(W / f'student-{name}.done').touch(); print(f'{name} t={now():.0f} saved', flush=True)
