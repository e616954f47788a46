"""Hugging Face's Trainer: a tiny GPT-2 from its config, on random tokens."""

import argparse
import os
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class StepTimes(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            print("step", state.global_step, time.perf_counter(), flush=True)

    def on_train_end(self, args, state, control, **kwargs):
        print("trained", flush=True)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 8192

    def __getitem__(self, index):
        tokens = torch.randint(512, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=1000)
    parser.add_argument("--out", default="hf")
    parser.add_argument("--probe", action="store_true", help="with the callback of the harness")
    args = parser.parse_args()
    callbacks = [StepTimes()]
    if args.probe:
        import scaling_probe

        callbacks.append(scaling_probe.TrainerCallback())
    config = GPT2Config(vocab_size=512, n_positions=32, n_embd=64, n_layer=1, n_head=2)
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=args.out,
            per_device_train_batch_size=args.batch_size // args.accumulate,
            gradient_accumulation_steps=args.accumulate,
            max_steps=args.max_steps,
            save_steps=110,
            logging_steps=20,
            use_cpu=True,
            report_to="none",
        ),
        train_dataset=Tokens(),
        callbacks=callbacks,
    )
    trainer.train()
    trainer.save_model(os.path.join(args.out, "last"))
