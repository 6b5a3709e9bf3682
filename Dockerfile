# The project with the packages of its locks. Chromium, and libatomic1 for its driver, are for the
# tests of the site.
#   docker build -t embedding-norm .
#   docker run embedding-norm test                  (or any other command of ./run_all.sh)
FROM python:3.12-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends chromium git libatomic1 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /embedding-norm
COPY . .
# Make .venv, and install both locks by hash.
RUN ./run_all.sh setup && ./run_all.sh test --version
ENTRYPOINT ["./run_all.sh"]
CMD ["--help"]
