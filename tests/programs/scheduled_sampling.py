# family: callbacks
# about: a conditional VAE: callbacks move teacher forcing and the weight of a loss in each step; buckets of lengths
# expect: same
import math
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import Dataset

from fabric_model import FabricModel

PAD, BOS, EOS, UNK, FIRST, VOCAB = 0, 1, 2, 3, 4, 14


class ReverseAndShift(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.pairs = []
        for _ in range(n):
            source = [rng.randrange(FIRST, VOCAB) for _ in range(rng.randint(3, 7))]
            target = [(t - FIRST + 1) % (VOCAB - FIRST) + FIRST for t in reversed(source)]
            self.pairs.append((source, target))
        self.lengths = [len(source) for source, _ in self.pairs]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        source, target = self.pairs[index]
        return torch.tensor(source), torch.tensor(target)


class Collate:
    """Pads, and hides some of the decoder's inputs (word dropout)."""

    def __init__(self, word_dropout):
        self.word_dropout = word_dropout

    def __call__(self, samples):
        bos, eos = torch.tensor([BOS]), torch.tensor([EOS])
        source = pad_sequence([s for s, _ in samples], batch_first=True, padding_value=PAD)
        shifted = pad_sequence([torch.cat([bos, t]) for _, t in samples], batch_first=True, padding_value=PAD)
        labels = pad_sequence([torch.cat([t, eos]) for _, t in samples], batch_first=True, padding_value=PAD)
        hidden = (torch.rand(shifted.shape) < self.word_dropout) & (shifted >= FIRST)
        return {"source": source, "source_len": torch.tensor([len(s) for s, _ in samples]),
                "target_in": shifted.masked_fill(hidden, UNK), "labels": labels}


class BucketSampler:
    """Batches of similar lengths: shuffle, then sort inside of chunks."""

    def __init__(self, lengths, chunk=32, seed=5):
        self.lengths, self.chunk, self.seed, self.epoch = lengths, chunk, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths)

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        for start in range(0, len(order), self.chunk):
            yield from sorted(order[start:start + self.chunk], key=lambda i: self.lengths[i])


class VariationalSeq2Seq(nn.Module):
    def __init__(self, embed=16, hidden=32, latent=6):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, embed, padding_idx=PAD)
        self.encoder = nn.GRU(embed, hidden, batch_first=True)
        self.target_encoder = nn.GRU(embed, hidden, batch_first=True)
        self.prior = nn.Linear(hidden, 2 * latent)
        self.posterior = nn.Linear(2 * hidden, 2 * latent)
        self.start = nn.Linear(hidden + latent, hidden)
        self.cell = nn.GRUCell(embed + hidden, hidden)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(2 * hidden, VOCAB)
        self.register_buffer("teacher_forcing", torch.tensor(1.0))

    def forward(self, source, source_len, target_in):
        packed = pack_padded_sequence(self.embedding(source), source_len.cpu(), batch_first=True, enforce_sorted=False)
        memory, last = self.encoder(packed)
        memory, _ = pad_packed_sequence(memory, batch_first=True, total_length=source.size(1))
        last = last[-1]
        seen = self.target_encoder(self.embedding(target_in))[1][-1]

        prior_mean, prior_logvar = self.prior(last).chunk(2, dim=1)
        mean, logvar = self.posterior(torch.cat([last, seen], dim=1)).chunk(2, dim=1)
        z = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean) if self.training else prior_mean

        state = torch.tanh(self.start(torch.cat([last, z], dim=1)))
        padding = source == PAD
        token, logits = target_in[:, 0], []
        for t in range(target_in.size(1)):
            if t > 0:
                token = logits[-1].detach().argmax(1)
                if self.training:
                    forced = torch.rand(len(token), device=token.device) < self.teacher_forcing
                    token = torch.where(forced, target_in[:, t], token)
            scores = torch.bmm(memory, state.unsqueeze(2)).squeeze(2).masked_fill(padding, float("-inf"))
            context = torch.bmm(scores.softmax(1).unsqueeze(1), memory).squeeze(1)
            state = self.cell(torch.cat([self.drop(self.embedding(token)), context], dim=1), state)
            logits.append(self.out(torch.cat([state, context], dim=1)))
        return {"logits": torch.stack(logits, dim=1), "mean": mean, "logvar": logvar,
                "prior_mean": prior_mean, "prior_logvar": prior_logvar}


class ElboLoss(nn.Module):
    def __init__(self, free_bits=0.05):
        super().__init__()
        self.free_bits = free_bits
        self.register_buffer("beta", torch.zeros(()))

    def forward(self, outputs, labels):
        nll = F.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=0.05)
        gap = outputs["mean"] - outputs["prior_mean"]
        kl = 0.5 * (outputs["prior_logvar"] - outputs["logvar"] - 1
                    + (outputs["logvar"].exp() + gap ** 2) / outputs["prior_logvar"].exp())
        return nll + self.beta * kl.mean(0).clamp(min=self.free_bits).sum()


class ScheduledSampling:
    """Inverse sigmoid decay of the share of forced tokens."""

    def __init__(self, k=4.0):
        self.k, self.seen = k, 0

    def on_step_begin(self, step):
        self.model.teacher_forcing.fill_(self.k / (self.k + math.exp(self.seen / self.k)))

    def on_step_end(self, step, logs):
        self.seen += 1


class KLAnnealing:
    """Linear warm-up of beta in the loss, once an epoch (cyclical)."""

    def __init__(self, criterion, period):
        self.criterion, self.period, self.seen = criterion, period, 0

    def on_step_begin(self, step):
        self.criterion.beta.fill_(min(1.0, (self.seen % self.period + 1) / (0.75 * self.period)))
        self.seen += 1


def token_accuracy(outputs, labels):
    real = labels != PAD
    right = (outputs["logits"].argmax(2) == labels) & real
    return right.sum() / real.sum()


class ExactMatch:
    def __init__(self):
        self.right, self.total = 0, 0

    def reset(self):
        self.right, self.total = 0, 0

    def update(self, outputs, labels):
        same = (outputs["logits"].argmax(2) == labels) | (labels == PAD)
        self.right += int(same.all(1).sum())
        self.total += len(labels)

    def compute(self):
        return self.right / max(self.total, 1)


def datasets():
    return ReverseAndShift(96, seed=1), ReverseAndShift(24, seed=2)


def inverse_sqrt(step, warmup=4):
    return min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def main():
    torch.manual_seed(21)
    random.seed(21)
    model = VariationalSeq2Seq()
    criterion = ElboLoss()
    optimizer = torch.optim.RAdam(model.parameters(), lr=2e-2, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, inverse_sqrt)
    sampling, annealing = ScheduledSampling(), KLAnnealing(criterion, period=4)

    fabric = FabricModel(model, datasets, criterion, optimizer, metrics=[token_accuracy, ExactMatch()],
                         fn_batch_collate=Collate(word_dropout=0.1), user_callback=[sampling, annealing])
    history = fabric.train(3, 6, engines_number=4, num_dataloader_threads=2,
                           sampler=lambda train: BucketSampler(train.lengths),
                           lr_scheduler=scheduler, lr_scheduler_interval="step", clip_grad_norm=1.0)

    for name in ("loss", "token_accuracy", "val_loss", "val_token_accuracy", "val_ExactMatch", "lr"):
        print(name, history[name][-1])
    print("steps", sampling.seen, annealing.seen)
    print("beta", criterion.beta.item(), "teacher_forcing", model.teacher_forcing.item())


if __name__ == "__main__":
    main()
