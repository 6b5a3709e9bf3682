# The project with what its locks name, and a browser and its driver's library for the tests of the
# lab record.
#   docker build -t embedding-norm .
#   docker run embedding-norm test                  or any other command of ./run_all.sh
FROM python:3.12-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends chromium git libatomic1 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /embedding-norm
COPY . .
# Makes .venv and installs both locks by hash.
RUN ./run_all.sh setup && ./run_all.sh test --version
ENTRYPOINT ["./run_all.sh"]
CMD ["--help"]
