from __future__ import annotations

from django.urls import path

from library import views

urlpatterns = [
    path("books/<str:title>", views.shelve),
    path("books/<str:title>/loans", views.lend),
    path("loans/<int:loan_id>", views.show),
]
