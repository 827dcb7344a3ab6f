"""Compute the accuracy of the weights of a finished training on the test samples.

    dlicmd --exec-trainresult EXEC_ID
    unzip *-result.zip
    python samples/digits/evaluate.py model/train/model_epoch_final.pth
"""

import argparse
import os

import torch
from network import Net, load_digits, score


def main():
    parser = argparse.ArgumentParser(description="Score the weights of a finished training")
    parser.add_argument("weights", help="model_epoch_final.pth from the result")
    parser.add_argument("--data", default=os.path.join(os.path.dirname(__file__), "data"), help="its folder of samples")
    args = parser.parse_args()

    model = Net()
    model.load_state_dict(torch.load(args.weights, weights_only=True))
    print(f"Test accuracy: {score(model, load_digits(args.data)[1]):.4f}")


if __name__ == "__main__":
    main()
