from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Book",
            fields=[
                ("title", models.CharField(max_length=100, primary_key=True, serialize=False)),
                ("copies", models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Loan",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("member", models.CharField(max_length=100)),
                ("confirmed", models.BooleanField(default=False)),
                ("book", models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="library.book")),
            ],
        ),
    )
