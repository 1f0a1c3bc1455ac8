"""Tests of what `holdfast manifests` and the chart print. They need no cluster, but the tests of the chart need Helm."""
