# family: architectures
# about: a recurrent network with CTC loss on sequences of different lengths
# expect: same
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import Dataset

from fabric_model import FabricModel

torch.manual_seed(11)
PHONES, MELS = 6, 8

class Utterances(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        shapes = torch.randn(PHONES, MELS, generator=torch.Generator().manual_seed(5))
        self.items = []
        for _ in range(n):
            length = int(torch.randint(2, 6, (1,), generator=g))
            text = torch.randint(1, PHONES, (length,), generator=g)
            stretch = torch.randint(4, 8, (length,), generator=g)
            frames = shapes[text].repeat_interleave(stretch, 0)
            self.items.append((frames + 0.3 * torch.randn(frames.shape, generator=g), text))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        frames, text = self.items[i]
        if torch.rand(()) < 0.5:                                # SpecAugment: one masked band
            frames = frames.clone()
            band = int(torch.randint(0, MELS - 1, ()))
            frames[:, band:band + 2] = 0
        return frames, text

def collate(samples):
    frames, texts = zip(*samples)
    frame_lengths = torch.tensor([len(f) for f in frames])
    text_lengths = torch.tensor([len(t) for t in texts])
    return (pad_sequence(frames, True), frame_lengths), (pad_sequence(texts, True), text_lengths)

class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(MELS, 16, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(32, PHONES)

    def forward(self, frames, lengths):
        packed = pack_padded_sequence(frames, lengths.cpu(), batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        return self.head(self.drop(hidden)).log_softmax(-1), lengths

def ctc(outputs, labels):
    log_probs, lengths = outputs
    texts, text_lengths = labels
    return nn.functional.ctc_loss(log_probs.transpose(0, 1), texts, lengths, text_lengths, zero_infinity=True)

def datasets():
    return Utterances(48, 1), Utterances(12, 2)

model = Recogniser()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
fabric = FabricModel(model, datasets, ctc, optimizer, fn_batch_collate=collate, clip_grad_norm=5.0)
history = fabric.train(3, 4, engines_number=4)
print(history["loss"], history["val_loss"], float(model.head.weight.detach().double().abs().sum()))
