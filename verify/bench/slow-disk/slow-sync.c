/*
 * Preloaded into a process, it gives the process another disk. Linux only.
 * SLOW_SYNC_MS: every fsync and fdatasync takes this much longer.
 * SYNC_CONTROL: a folder. While it holds a file `hold`, a sync waits, and says so with a file `held`.
 *               While it holds a file `fail`, a sync fails with EIO.
 * SYNC_KEEP:    a folder. It gets a copy of each file as of its last sync: what a power failure would leave at least.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void pause_ms(long ms) {
  struct timespec pause = {ms / 1000, (ms % 1000) * 1000000L};
  nanosleep(&pause, 0);
}

static const char *in_folder(char *path, size_t size, const char *folder, const char *name) {
  snprintf(path, size, "%s/%s", folder, name);
  return path;
}

/* EIO when the sync has to fail, else 0. */
static int wait_for_control(void) {
  char path[4096];
  const char *folder = getenv("SYNC_CONTROL");
  if (!folder) return 0;
  while (access(in_folder(path, sizeof path, folder, "hold"), F_OK) == 0) {
    int held = open(in_folder(path, sizeof path, folder, "held"), O_CREAT | O_WRONLY, 0600);
    if (held >= 0) close(held);
    pause_ms(1);
  }
  return access(in_folder(path, sizeof path, folder, "fail"), F_OK) == 0 ? EIO : 0;
}

static void keep_copy(int fd) {
  char link[64], source[4096], kept[8192], part[8300], buffer[65536];
  const char *folder = getenv("SYNC_KEEP");
  if (!folder) return;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, source, sizeof source - 1);
  if (length <= 0) return;
  source[length] = 0;
  snprintf(kept, sizeof kept, "%s%s", folder, strrchr(source, '/'));
  snprintf(part, sizeof part, "%s.%d", kept, gettid());
  int copy = open(part, O_CREAT | O_TRUNC | O_WRONLY, 0600);
  off_t at = 0;
  for (ssize_t got; (got = pread(fd, buffer, sizeof buffer, at)) > 0; at += got)
    if (write(copy, buffer, got) != got) abort();
  close(copy);
  rename(part, kept);
}

static int synced(const char *name, int fd) {
  const char *ms = getenv("SLOW_SYNC_MS");
  if (ms) pause_ms(atol(ms));
  int failure = wait_for_control();
  if (failure) {
    errno = failure;
    return -1;
  }
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
  int result = real(fd);
  if (result == 0) keep_copy(fd);
  return result;
}

int fsync(int fd) { return synced("fsync", fd); }

int fdatasync(int fd) { return synced("fdatasync", fd); }
