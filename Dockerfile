# syntax=docker/dockerfile:1
# Two stages: the first installs the development packages and builds, the second has only the build.
# `npm run image-steps` runs the same steps without Docker: see docs/deploying.md.

FROM node:24.21.0-bookworm-slim AS build
WORKDIR /app
COPY .npmrc package.json package-lock.json ./
COPY client/package.json client/
COPY console/package.json console/
RUN npm ci
COPY . .
RUN npm run build

FROM node:24.21.0-bookworm-slim
WORKDIR /app
ENV HOST=0.0.0.0 PORT=8080 DATA_DIR=/data
RUN install --directory --owner=node --group=node /data
COPY --from=build /app/dist .
# A number, not a name: Kubernetes needs the number to check runAsNonRoot.
USER 1000
VOLUME /data
EXPOSE 8080
# Node is process 1, so it gets SIGTERM. The service writes only to /data, so the file system may be read-only.
CMD ["node", "--max-semi-space-size=16", "--liftoff-only", "bin/project-api.js", "serve"]
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
  CMD ["node", "-e", "fetch(`http://127.0.0.1:${process.env.PORT}/healthz`).then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
