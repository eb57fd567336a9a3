/* Lets a User-Mode-Linux kernel of version 6.1 run on processors with AMX; loaded before its libc.

   Such a kernel keeps 2,696 bytes of a process's extended registers: all there was when it was
   written. PTRACE_SETREGSET takes nothing but the whole state, which AMX makes longer, and refuses
   the rest with EFAULT (Linux, arch/x86/kernel/fpu/regset.c). What is missing here is set to zero,
   which together with the header, whose bits name the parts in use, means: unused. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

typedef long (*Ptrace)(long request, long pid, void *address, void *data);

static Ptrace next_ptrace;
/* Not on the stack, which is a small one of the kernel; it has one thread. */
static char wide[65536] __attribute__((aligned(64)));

__attribute__((constructor)) static void find_next(void) {
  next_ptrace = (Ptrace)dlsym(RTLD_NEXT, "ptrace");
}

long ptrace(enum __ptrace_request request, ...) {
  va_list rest;
  va_start(rest, request);
  long pid = va_arg(rest, int);
  void *address = va_arg(rest, void *);
  void *data = va_arg(rest, void *);
  va_end(rest);
  if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
    struct iovec *given = data;
    struct iovec whole = {wide, sizeof wide};
    if (given->iov_len < sizeof wide &&
        next_ptrace(PTRACE_GETREGSET, pid, address, &whole) == 0 &&
        whole.iov_len > given->iov_len) { /* now it has the length that the machine wants */
      memset(wide, 0, whole.iov_len);
      memcpy(wide, given->iov_base, given->iov_len);
      return next_ptrace(request, pid, address, &whole);
    }
  }
  return next_ptrace(request, pid, address, data);
}
