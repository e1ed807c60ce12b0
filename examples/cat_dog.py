"""The toy example of Appendix B: a language with two sentences, "cat meows" and "dog barks".

A masked diffusion model that reveals both words at once also writes "cat barks" and "dog meows". A single register
prevents this. The code, with all three losses and four samplers, is in
src/crocodil/reproduce/experiments/two_sentences.py. Runs in a few seconds on a CPU.
"""

from crocodil.reproduce.experiments.two_sentences import NUM_SAMPLES, rows

if __name__ == "__main__":
    results = rows(print)
    print(f"\n{NUM_SAMPLES} sentences each               calls   incoherent   first four sentences")
    for row in results:
        print(f"{row['sampler']:<32} {row['calls']:6d} {row['incoherent_share']:11.1%}   {row['first']}")
