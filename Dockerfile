# The two commands of the README in a container:
#   docker build -t gswgan .
#   docker run --rm gswgan              # make demo
#   docker run --rm gswgan make test
# With --build-arg PIP_EXTRA_INDEX_URL=URL, the URL of PyTorch's packages for CPUs, the image is several gigabytes smaller.
FROM python:3.11-slim

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home steward

USER 1000
WORKDIR /home/steward/gswgan
COPY --chown=1000 . .
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 \
    PATH=/home/steward/gswgan/.venv/bin:$PATH
RUN make .venv/.installed-dev

CMD ["make", "demo"]
