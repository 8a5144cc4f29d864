"""Small CUDA kernels as PTX, which the driver compiles: this needs neither a toolkit nor a framework."""

_HEAD = ".version {version}\n.target {target}\n.address_size 64\n"

# Each thread multiplies and adds in its registers; what it has at the end is stored only if it is impossible.
_FMA = """
.visible .entry fma(.param .u64 out, .param .u32 n)
{
    .reg .f32 %f<12>; .reg .b32 %r<6>; .reg .b64 %rd<3>; .reg .pred %p<3>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    cvt.rn.f32.u32 %f1, %r2;
    add.f32 %f2, %f1, 0f3F800000; add.f32 %f3, %f2, 0f3F800000; add.f32 %f4, %f3, 0f3F800000;
    add.f32 %f5, %f4, 0f3F800000; add.f32 %f6, %f5, 0f3F800000; add.f32 %f7, %f6, 0f3F800000;
    add.f32 %f8, %f7, 0f3F800000;
    mov.f32 %f9, 0f3F7FF972; mov.f32 %f10, 0f3DCCCCCD;
FMA_AGAIN:
""" + "".join(
    f"    fma.rn.f32 %f{i}, %f{i}, %f9, %f10;\n" for _ in range(16) for i in range(1, 9)
) + """
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra FMA_AGAIN;
    add.f32 %f1, %f1, %f2; add.f32 %f3, %f3, %f4; add.f32 %f5, %f5, %f6; add.f32 %f7, %f7, %f8;
    add.f32 %f1, %f1, %f3; add.f32 %f5, %f5, %f7; add.f32 %f1, %f1, %f5;
    setp.lt.f32 %p2, %f1, 0fC9742400;
    @%p2 st.global.f32 [%rd1], %f1;
    ret;
}
"""

# Copies n times 16 bytes for each thread, from the first half of a buffer to the second.
_COPY = """
.visible .entry copy(.param .u64 out, .param .u32 n)
{
    .reg .b32 %r<12>; .reg .b64 %rd<8>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %nctaid.x;
    mad.lo.u32 %r6, %r3, %r4, %r2;
    mul.lo.u32 %r7, %r4, %r5;
    mul.wide.u32 %rd2, %r6, 16;
    mul.wide.u32 %rd3, %r7, 16;
    cvt.u64.u32 %rd4, %r1;
    mul.lo.u64 %rd5, %rd3, %rd4;
    add.u64 %rd6, %rd1, %rd2;
    add.u64 %rd7, %rd6, %rd5;
COPY_AGAIN:
    ld.global.v4.u32 {%r8, %r9, %r10, %r11}, [%rd6];
    st.global.v4.u32 [%rd7], {%r8, %r9, %r10, %r11};
    add.u64 %rd6, %rd6, %rd3;
    add.u64 %rd7, %rd7, %rd3;
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra COPY_AGAIN;
    ret;
}
"""

# Polls a flag in memory as a collective does whose peer has not come, for n microseconds.
_SPIN = """
.visible .entry spin(.param .u64 out, .param .u32 n)
{
    .reg .b32 %r<4>; .reg .b64 %rd<6>; .reg .pred %p<3>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    ld.param.u32 %r1, [n];
    mul.wide.u32 %rd2, %r1, 1000;
    mov.u64 %rd3, %globaltimer;
    add.u64 %rd2, %rd2, %rd3;
SPIN_AGAIN:
    ld.volatile.global.u32 %r2, [%rd1];
    setp.eq.u32 %p1, %r2, 0xFFFFFFFF;
    @%p1 bra SPIN_DONE;
    mov.u64 %rd4, %globaltimer;
    setp.lt.u64 %p2, %rd4, %rd2;
    @%p2 bra SPIN_AGAIN;
SPIN_DONE:
    ret;
}
"""

# Does nothing.
_EMPTY = """
.visible .entry empty(.param .u64 out, .param .u32 n)
{
    ret;
}
"""


def _mma() -> str:
    # Eight independent products of 16x8x16 for each warp, of numbers that differ, so that bits toggle.
    accumulators = [f"%f{i}" for i in range(32)]
    lines = [
        ".visible .entry mma(.param .u64 out, .param .u32 n)",
        "{",
        "    .reg .f32 %f<40>; .reg .b32 %r<16>; .reg .b64 %rd<3>; .reg .pred %p<3>;",
        "    ld.param.u64 %rd1, [out];",
        "    cvta.to.global.u64 %rd1, %rd1;",
        "    ld.param.u32 %r1, [n];",
        "    mov.u32 %r2, %tid.x;",
        "    mul.lo.u32 %r2, %r2, 0x9E3779B1;",
    ]
    for i in range(3, 9):
        # Two bf16 numbers of magnitude 1/2 to 2, of random sign and mantissa.
        lines += [
            f"    mad.lo.u32 %r2, %r2, 0x19660D, 0x3C6EF35F;",
            f"    and.b32 %r{i}, %r2, 0x80FF80FF;",
            f"    or.b32 %r{i}, %r{i}, 0x3F003F00;",
        ]
    # Equal sums would be made once.
    lines += [f"    cvt.rn.f32.u32 {a}, %r2;\n    mul.f32 {a}, {a}, 0f{0x2F800000 + (i << 19):08X};"
              for i, a in enumerate(accumulators)]
    lines.append("MMA_AGAIN:")
    for i in range(8):
        c = ", ".join(accumulators[4 * i : 4 * i + 4])
        b = "%r7, %r8" if i % 2 else "%r8, %r7"
        lines.append(
            "    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            f"{{{c}}}, {{%r3, %r4, %r5, %r6}}, {{{b}}}, {{{c}}};"
        )
    lines += ["    sub.u32 %r1, %r1, 1;", "    setp.ne.u32 %p1, %r1, 0;", "    @%p1 bra MMA_AGAIN;"]
    lines += [f"    add.f32 %f0, %f0, {a};" for a in accumulators[1:]]
    lines += ["    setp.eq.f32 %p2, %f0, 0f49742412;", "    @%p2 st.global.f32 [%rd1], %f0;", "    ret;", "}"]
    return "\n".join(lines)


PLAIN = _HEAD.format(version="6.0", target="sm_50") + _FMA + _COPY + _SPIN + _EMPTY
TENSOR = _HEAD.format(version="7.0", target="sm_80") + _mma() + "\n"
