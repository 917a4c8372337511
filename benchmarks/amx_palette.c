/* Puts back what some hypervisors hide of AMX. For measurements only.
 *
 * A processor with AMX describes its tiles in CPUID leaves 0x1D (palettes) and 0x1E (multiplier). Some
 * hypervisors announce AMX in leaf 7 and let guests use it, but give these two leaves as zeros or as out of
 * range. oneDNN, as it is in torch 2.13, then configures its tiles with palette 0, and the first matrix
 * product in bfloat16 dies with SIGILL, though the processor itself would do it.
 *
 * Loaded by LD_PRELOAD, this library asks the kernel to fault on every CPUID instruction of the process
 * (arch_prctl ARCH_SET_CPUID), runs the instruction itself when the fault arrives as SIGSEGV, and fills the
 * two leaves in where they are empty. All other leaves stay as they are. Threads inherit the setting, a new
 * program does not. Software reads CPUID when it starts, not in its loops: what is timed is not slowed.
 *
 * cc -O2 -shared -fPIC -o amx_palette.so amx_palette.c
 */

#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define SET_CPUID 0x1012 /* ARCH_SET_CPUID of <asm/prctl.h>, which older headers lack */
#define PALETTES 0x1d
#define MULTIPLIER 0x1e

struct registers {
    unsigned a, b, c, d;
};

static long allow_cpuid(int allowed)
{
    return syscall(SYS_arch_prctl, SET_CPUID, (long)allowed);
}

static struct registers cpuid(unsigned leaf, unsigned part)
{
    struct registers r;
    __asm__ volatile("cpuid" : "=a"(r.a), "=b"(r.b), "=c"(r.c), "=d"(r.d) : "a"(leaf), "c"(part));
    return r;
}

/* What the processor says, with the two leaves filled in as Intel documents them for palette 1: eight tiles
 * of 1024 bytes, 16 rows of 64 bytes each. */
static struct registers described(unsigned leaf, unsigned part)
{
    struct registers r = cpuid(leaf, part);
    if (leaf == 0 && r.a < MULTIPLIER)
        r.a = MULTIPLIER; /* the highest leaf: beyond it nobody looks */
    if (leaf != PALETTES && leaf != MULTIPLIER)
        return r;
    if (cpuid(0, 0).a >= leaf && (r.a | r.b | r.c | r.d))
        return r; /* it is there; beyond the highest leaf, a processor gives what belongs to another */
    if (leaf == PALETTES && part == 0)
        return (struct registers){.a = 1}; /* the highest palette */
    if (leaf == PALETTES && part == 1)
        return (struct registers){
            .a = 1024 << 16 | 8192, /* bytes of a tile, bytes of all tiles */
            .b = 8 << 16 | 64,      /* tiles, bytes of a row */
            .c = 16,                /* rows */
        };
    if (leaf == MULTIPLIER && part == 0)
        return (struct registers){.b = 64 << 8 | 16}; /* bytes of a column, rows */
    return (struct registers){0};
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    greg_t *cpu = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)cpu[REG_RIP];
    /* a forbidden instruction comes from the kernel, without an address; CPUID is 0F A2 */
    if (info->si_code != SI_KERNEL || code[0] != 0x0f || code[1] != 0xa2) {
        signal(number, SIG_DFL); /* somebody else's fault: it happens again, and ends the process */
        return;
    }
    allow_cpuid(1);
    struct registers r = described((unsigned)cpu[REG_RAX], (unsigned)cpu[REG_RCX]);
    allow_cpuid(0);
    cpu[REG_RAX] = r.a;
    cpu[REG_RBX] = r.b;
    cpu[REG_RCX] = r.c;
    cpu[REG_RDX] = r.d;
    cpu[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, NULL);
    if (allow_cpuid(0))
        fputs("amx_palette: this kernel or processor cannot fault on CPUID\n", stderr);
}
