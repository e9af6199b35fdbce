from __future__ import annotations

from django.db import models


class Book(models.Model):
    title = models.CharField(max_length=100, primary_key=True)
    copies = models.PositiveIntegerField()

    def __str__(self) -> str:
        return self.title


class Loan(models.Model):
    book = models.ForeignKey(Book, on_delete=models.PROTECT)
    member = models.CharField(max_length=100)
    confirmed = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.book_id} for {self.member}"
