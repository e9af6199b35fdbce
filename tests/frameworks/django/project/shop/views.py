from __future__ import annotations

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from shop import jobs
from shop.models import Order


@csrf_exempt
@transaction.atomic
def order(request: HttpRequest) -> HttpResponse:
    """Write an order and enqueue its confirmation, in one transaction."""
    placed = Order.objects.create(item=request.POST["item"])
    jobs.confirm.using(session=connection).enqueue(order_id=placed.pk)
    if request.POST.get("then") == "fail":
        raise RuntimeError("the view fails after the enqueue")
    return HttpResponse(str(placed.pk), status=201)
