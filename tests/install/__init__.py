"""The installation: what `holdfast manifests` and the chart print. Needs no cluster; the chart's tests need Helm."""
