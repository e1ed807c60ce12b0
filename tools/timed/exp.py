"""exp.py SECONDS SLOTS OUT [init]: train a Joint denoiser for SECONDS on cached registers; bits on validation banks."""
import sys, time, json, math, torch, numpy as np, copy, os
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
from joint import Joint
from crocodil import Crocodil
from crocodil.processes.gaussian import time_of_noise, time_of_snr, signal_and_noise_level, add_noise
from crocodil.processes.masking import bare_canvas
from crocodil.training.optimisers import Muon, hidden_matrices
W = Path(os.environ.get('W', '/tmp/w')); T0 = int((W / 't0').read_text()) if (W / 't0').exists() else int(time.time())
until, slots, out = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]; opts = dict(a.split('=') for a in sys.argv[4:])
dev = 'cuda' if torch.cuda.is_available() else 'cpu'; BS = int(opts.get('batch', 2048)); MICRO = int(opts.get('micro', 2)); LR = float(opts.get('lr', 1.4e-3)); VAL = int(opts.get('val', 2048))
now = lambda: time.time() - T0
pipe = Crocodil.from_pretrained(W / 'start', device=dev)
def load(split, length):
    f = next((W / 'run').rglob(f'*{split}*{length}*/registers.npy'), None) or next((W / 'run').rglob(f'*{split}*/registers.npy')); print('file', f, flush=True)
    return torch.from_numpy(np.array(np.load(f, mmap_mode='r'))).to(dev)
train = {n: load('train', n) for n in (256, 512)}; valid = load('valid', 256)[:VAL].float()
print({n: tuple(v.shape) for n, v in train.items()}, tuple(valid.shape), f't={now():.0f}', flush=True)
autocast = lambda: torch.autocast(dev, torch.bfloat16, enabled=dev == 'cuda')
SNR = (torch.arange(48, device=dev) + .5) / 48 * 2.0  # to noise 0.707
@torch.no_grad()
def bits(f, banks, seed=5):
    g = torch.Generator(dev).manual_seed(seed); mse = []
    for s in SNR:
        t = time_of_snr(s.double()).float().expand(len(banks), banks.shape[1])
        e = 0.0
        for i in range(0, len(banks), 512):
            z = banks[i:i+512]; n = torch.randn(z.shape, generator=g, device=dev)
            with autocast(): p = f(add_noise(z, t[:len(z)], n), t[:len(z)])
            e += (p.float() - z).square().sum().item()
        mse.append(e / len(banks))
    m = np.array(mse); cum = np.cumsum(m) * (2.0 / 48) / 2 / math.log(2)
    return {f'{1/math.sqrt(k):.2f}': round(float(np.interp(k, (np.arange(48) + 1) / 24, cum)), 1) for k in (.25, .5, 1.0, 2.0)}
S = pipe.tokenizer.special; bos = None
enc, den = pipe.encoder, pipe.conditional
canvas = torch.full((1, 256), S.mask, device=dev)
corpus_bos = S.bos if hasattr(S, 'bos') and S.bos is not None else 1
canvas[:, 0] = corpus_bos
if opts.get('compare', '1') == '1':
    with torch.no_grad(): cond = enc(canvas, hidden=canvas == S.mask)
    den.eval()
    before = bits(lambda z, t: den(z, t, condition=cond), valid); (W / 'before.json').write_text(json.dumps(before))
    print('built-in denoiser', before, 'train', bits(lambda z, t: den(z, t, condition=cond), train[256][:len(valid)].float()), f't={now():.0f}', flush=True)
if opts.get('init', 'demasker') == 'random': pipe.demasker.init_weights(torch.Generator().manual_seed(0)) if dev == 'cpu' else pipe.demasker.cpu().init_weights(torch.Generator().manual_seed(0)).to(dev)
model = Joint(pipe.demasker.float(), slots, corpus_bos).to(dev).train()
for p in model.parameters(): p.requires_grad_(True)
model.dem.backbone.embed.weight.requires_grad_(False)
if 'from' in opts: model.load_state_dict(torch.load(W / opts['from'], map_location=dev, weights_only=True))
if dev == 'cuda':
    for b in model.dem.backbone.blocks: b.compile(dynamic=False)
hid = hidden_matrices(model.dem.backbone.blocks)
ps = [p for p in model.parameters() if p.requires_grad]
opt = Muon([dict(params=[p for p in ps if p in hid], hidden=True, weight_decay=.01), dict(params=[p for p in ps if p not in hid], hidden=False)], lr=LR, betas=(.9, .95))
ema = [p.detach().clone() for p in ps]; first_t = time_of_noise(.7)
g = torch.Generator(dev).manual_seed(int(opts.get('seed', 0))); lens = [256] * 6 + [512]
begin = now(); step = 0; losses = []; decay_from = begin + (until - begin) * float(opts.get('decay_at', .6))
shift = float(opts.get('shift', .5)); lo = first_t / (shift - (shift - 1) * first_t)
while now() < until and step < int(opts.get('steps', 10**9)):
    n = lens[step % 7]; model.length = n; bank = train[n]
    z = bank[torch.randint(len(bank), (BS,), generator=g, device=dev)].float()
    u = lo + (1 - lo) * (torch.arange(BS, device=dev) + torch.rand(BS, generator=g, device=dev)) / BS
    t = (shift * u / (1 + (shift - 1) * u))[:, None].expand(BS, 16)
    noisy = add_noise(z, t, torch.randn(z.shape, generator=g, device=dev)); order = torch.randperm(BS, generator=g, device=dev); loss = 0.0
    for part in order.chunk(MICRO):
        with autocast(): p = model(noisy[part], t[part])
        l = (p.float() - z[part]).square().mean() / MICRO; l.backward(); loss = loss + l.detach()
    torch.nn.utils.clip_grad_norm_(ps, 1.0)
    lr = LR * min(1, (step + 1) / 100) * min(1, max(0, (until - now()) / (until - decay_from)))
    for gr in opt.param_groups: gr['lr'] = lr
    opt.step(); opt.zero_grad(set_to_none=True); step += 1
    d = min(.998, (1 + step) / (10 + step)); torch._foreach_lerp_(ema, [p.detach() for p in ps], 1 - d)
    if step % 20 == 0: losses.append(loss.detach())
    if step in (1, 5, 50) or step % 400 == 0: print(f't={now():.0f} step {step} loss {torch.stack(losses[-20:]).mean().item() if losses else loss.item():.4f} lr {lr:.2e}', flush=True)
for p, e in zip(ps, ema): p.data.copy_(e)
model.length = 256; model.eval()
r = bits(model, valid); rt = bits(model, train[256][:len(valid)].float())
print(f'JOINT slots {slots} {opts} {step} steps {now()-begin:.0f} s: valid', r, 'train', rt, flush=True)
torch.save(model.state_dict(), W / f'{out}.pt'); (W / f'{out}.json').write_text(json.dumps(dict(bits=r, train=rt, steps=step)))
