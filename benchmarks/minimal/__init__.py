"""The peers of frameworks.py: ResNet-20 for 32x32 images and its training loop as in each framework's own examples,
without anything of this program. Each file has

    trainer(images, labels, batch): a function of n that trains n steps and returns their seconds.
"""
