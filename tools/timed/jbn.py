import torch
from dataclasses import replace
from crocodil.checkpoints.format import load_model, save_model
from crocodil.models.register_denoiser import RegisterDenoiser
d = load_model('KEPT/jb').float(); c = replace(d.config, self_conditioned=False)
n = RegisterDenoiser(c); n.load_state_dict({k: v for k, v in d.state_dict().items() if not k.startswith('proj_guess')})
save_model(n, 'KEPT/jbn/denoiser', bits=8); print(c)
