"""The peers of frameworks.py: ResNet-20 for 32x32 images and its training, as each framework's own examples would write
it, with nothing of this program. Each file has

    trainer(images, labels, batch): a function of n that trains n steps and gives their seconds.
"""
