from __future__ import annotations

from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=100, unique=True)
    confirmed = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.item


class Note(models.Model):
    """What tasks write."""

    text = models.TextField()

    def __str__(self) -> str:
        return self.text
