from __future__ import annotations

from django.db import connection, transaction
from django.db.models import F
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe

from library.jobs import confirm_loan
from library.models import Book, Loan


@csrf_exempt
def shelve(request: HttpRequest, title: str) -> JsonResponse:
    book, _ = Book.objects.update_or_create(title=title, defaults={"copies": int(request.GET["copies"])})
    return JsonResponse({"title": book.title, "copies": book.copies})


@csrf_exempt
@require_POST
@transaction.atomic
def lend(request: HttpRequest, title: str) -> JsonResponse:
    book = get_object_or_404(Book, title=title)
    loan = Loan.objects.create(book=book, member=request.GET["member"])
    confirm_loan.using(session=connection).enqueue(loan_id=loan.pk)
    if not Book.objects.filter(title=title, copies__gt=0).update(copies=F("copies") - 1):
        transaction.set_rollback(True)  # no loan, no job
        return JsonResponse({"error": "no copy is left"}, status=409)
    return JsonResponse({"id": loan.pk}, status=201)


@require_safe
def show(request: HttpRequest, loan_id: int) -> JsonResponse:
    loan = get_object_or_404(Loan, pk=loan_id)
    return JsonResponse({"book": loan.book_id, "member": loan.member, "confirmed": loan.confirmed})
