"""GGUF's formats of one to three bits: groups of eight or four values are points of a lattice, named by number.

Which points of each lattice are used is part of the format. They are kept as the distances between their codes: a point's code
has two or three bits for each of its coordinates, the first lowest, and codes ascend.
"""

import base64
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Blocks = npt.NDArray[Any]

_TWO_BITS, _SIGNED = (8, 25, 43), (-1, 0, 1)
_POINTS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "IQ2_XXS": (256, 8, _TWO_BITS),
    "IQ2_XS": (512, 8, _TWO_BITS),
    "IQ2_S": (1024, 8, _TWO_BITS),
    "IQ3_XXS": (256, 4, (4, 12, 20, 28, 36, 44, 52, 62)),
    "IQ3_S": (512, 4, (1, 3, 5, 7, 9, 11, 13, 15)),
    "IQ1_S": (2048, 8, _SIGNED),
}
"""How many points, coordinates of a point, and the values of a coordinate; in the order of `_DISTANCES`."""

IQ2_XXS = np.dtype([("scale", "<f2"), ("codes", "<u4", (8, 2))])
IQ2_XS = np.dtype([("scale", "<f2"), ("codes", "<u2", 32), ("scales", "u1", 8)])
IQ2_S = np.dtype([("scale", "<f2"), ("low", "u1", 32), ("signs", "u1", 32), ("high", "u1", 8), ("scales", "u1", 8)])
IQ3_XXS = np.dtype([("scale", "<f2"), ("low", "u1", 64), ("signs", "<u4", 8)])
IQ3_S = np.dtype([("scale", "<f2"), ("low", "u1", 64), ("high", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])
IQ1_S = np.dtype([("scale", "<f2"), ("low", "u1", 32), ("high", "<u2", 8)])
IQ1_M = np.dtype([("low", "u1", 32), ("high", "u1", 16), ("scales", "<u2", 4)])
DELTA = np.float32(0.125)


def _floats(values: Any) -> Floats:
    return np.asarray(values, np.float32)


@cache
def points(name: str) -> Floats:
    """[number, coordinates]."""
    distances = np.frombuffer(zlib.decompress(base64.b85decode(_DISTANCES)), "<u2").astype(np.int64)
    begin = 0
    for other, (count, size, levels) in _POINTS.items():
        if other == name:
            codes = np.cumsum(distances[begin : begin + count])
            bits = 2 if len(levels) <= 4 else 3
            digits = (codes[:, None] >> (bits * np.arange(size))) & ((1 << bits) - 1)
            return _floats(np.array(levels)[digits])
        begin += count
    raise KeyError(name)


def _sign_of_bits(bits: npt.NDArray[Any]) -> Floats:
    """[...] bytes -> [..., 8]: a set bit is a minus, the lowest first."""
    return np.where((bits[..., None] >> np.arange(8, dtype=np.uint8)) & 1, np.float32(-1), np.float32(1))


def _seven_bits(signs: npt.NDArray[Any]) -> Floats:
    """Seven signs; the eighth makes their number even."""
    seven = signs.astype(np.uint8)
    odd = np.unpackbits(seven[..., None], axis=-1).sum(-1).astype(np.uint8) & 1
    return _sign_of_bits(seven | (odd << np.uint8(7)))


def _scale(blocks: Blocks) -> Floats:
    scale: Floats = blocks["scale"].astype(np.float32)
    return scale[:, None]


def _nibbles(packed: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The low half of each byte, then its high half."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(len(packed), -1)


def iq2_xxs(blocks: Blocks) -> Floats:
    numbers = np.ascontiguousarray(blocks["codes"][:, :, 0]).view(np.uint8).reshape(-1, 8, 4)
    words = blocks["codes"][:, :, 1]
    signs = (words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32)) & 127
    scales = _scale(blocks) * (np.float32(0.5) + (words >> 28)) * np.float32(0.25)
    return _floats(scales[:, :, None, None] * points("IQ2_XXS")[numbers] * _seven_bits(signs))


def iq2_xs(blocks: Blocks) -> Floats:
    codes = blocks["codes"].reshape(-1, 16, 2)
    scales = _scale(blocks) * (np.float32(0.5) + _nibbles(blocks["scales"])) * np.float32(0.25)
    return _floats(scales[:, :, None, None] * points("IQ2_XS")[codes & 511] * _seven_bits(codes >> 9))


def iq2_s(blocks: Blocks) -> Floats:
    high = (blocks["high"][:, :, None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3
    numbers = blocks["low"].astype(np.uint16) | (high.reshape(-1, 32).astype(np.uint16) << 8)
    scales = _scale(blocks) * (np.float32(0.5) + _nibbles(blocks["scales"])) * np.float32(0.25)
    values = points("IQ2_S")[numbers] * _sign_of_bits(blocks["signs"])
    return _floats(scales[:, :, None] * values.reshape(-1, 16, 16))


def iq3_xxs(blocks: Blocks) -> Floats:
    words = blocks["signs"]
    signs = _seven_bits((words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32)) & 127)
    scales = _scale(blocks) * (np.float32(0.5) + (words >> 28)) * np.float32(0.5)
    return _floats(scales[:, :, None, None] * points("IQ3_XXS")[blocks["low"]].reshape(-1, 8, 4, 8) * signs)


def iq3_s(blocks: Blocks) -> Floats:
    high = np.unpackbits(blocks["high"], axis=-1, bitorder="little").astype(np.uint16)
    numbers = blocks["low"].astype(np.uint16) | (high << 8)
    scales = _scale(blocks) * (1 + 2 * _nibbles(blocks["scales"])).astype(np.float32)
    values = points("IQ3_S")[numbers].reshape(-1, 32, 8) * _sign_of_bits(blocks["signs"])
    return _floats(scales[:, :, None] * values.reshape(-1, 8, 32))


def iq1_s(blocks: Blocks) -> Floats:
    high = blocks["high"]
    above = (high[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & 7
    numbers = blocks["low"].reshape(-1, 8, 4) | (above << 8)
    scales = _scale(blocks) * (2 * ((high >> 12) & 7) + 1)
    delta = np.where(high & 0x8000, -DELTA, DELTA)
    return _floats(scales[:, :, None, None] * (points("IQ1_S")[numbers] + delta[:, :, None, None]))


def iq1_m(blocks: Blocks) -> Floats:
    words = blocks["scales"]
    bits = (words >> np.array([12, 8, 4, 0], np.uint16)) & np.array([0xF, 0xF0, 0xF00, 0xF000], np.uint16)
    scale = np.bitwise_or.reduce(bits, axis=-1).astype(np.uint16).view(np.float16).astype(np.float32)
    small = ((words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & 7).reshape(-1, 16)
    halves = _nibbles(blocks["high"])
    numbers = blocks["low"].astype(np.uint16) | ((halves & 7).astype(np.uint16) << 8)
    delta = np.where(halves & 8, -DELTA, DELTA)
    values = (points("IQ1_S")[numbers] + delta[:, :, None]).reshape(-1, 16, 16)
    scales: Floats = scale[:, None] * (2 * small + 1)
    return _floats(scales[:, :, None] * values)


LATTICES: dict[str, tuple[np.dtype[Any], Callable[[Blocks], Floats]]] = {
    "IQ2_XXS": (IQ2_XXS, iq2_xxs),
    "IQ2_XS": (IQ2_XS, iq2_xs),
    "IQ2_S": (IQ2_S, iq2_s),
    "IQ3_XXS": (IQ3_XXS, iq3_xxs),
    "IQ3_S": (IQ3_S, iq3_s),
    "IQ1_S": (IQ1_S, iq1_s),
    "IQ1_M": (IQ1_M, iq1_m),
}
"""By type: how a block of 256 values lies in bytes, and what they stand for."""

_DISTANCES = (
    b"c-oy=U5s5-6<+(?v+v(I_h+UvbLY<7&Yfw8c7#$#NCgREP(+aw6HFc2j@%YW|Df35PpfHy5PkE}5DWncnlv#cSmOhR&@>v24?f7dFZxPIj6Rqc6aCiOY"
    b"wx?y{h1Er=H7G8-fOSDe!sQ$xkL$-@JXnG-yGL6z8$%*QVrK0o~yJ-0~xb)2R%e{bPl7dbc$XuJUXLvWzek&-5hP}^8wlqelv6hJ8WX@Ds3C9G+o{ElX"
    b"R8tr{B>mePA8GKIqnEzh`9kO{#;_&%ym2!_OA8_s}c!C3>9}=zWo5lOCiOF!L&1r?)IieIM-wr-ZKI_ibGNr*sSS3()STL*|NEq;Ju$%)9fk##L%!Kc~"
    b"qhNb(@oTgcd=doeRhuZRq%Apdvq^j9*8<7??1dICJw==by}U9!xt3cXL^_bNR=PtgaEA%QLaO<$p3ni-5giuHe@|5{$Z0gaAf?HB0{*eC<#^K>J*(P3T"
    b"gffO&nW*hV#{lj=)tkN6wFg-@!#{4S1X%f>g|FUe`9-YSM1^NRlwvYBv!)%s*N`EguMn~ue*ncs(H~kG!!T)?;(UI=RvyTOTZ!vRvgvN1+so17nwPQTG"
    b"7NV(6m(9*QC6O=2d2p<}D0d6Ag!#|XRa1;<3vN!54cMqoTjZmqN|!NGrROku+U_hx4w}wXDK=s81hML*-DJO*Q7X0=`{hMlaT8BR=xyV2;4q%<qVIv~G"
    b"`)`~+OkD0{64E<b-t@2x?hE7pM+k=g-aI_-h^H=^aW&SmwrSi5UB|)bA;}Ob^Zv-D~Q~uB+D<)PuF<Vc9V6skYJ!W+~K`VF+PU2xu_Z6qZ4!n7P=2l*N"
    b"x}WLRP&FsqYpYUPU%cil9xk97jz;H-IH)Xv+-oVh!H`sITDr6IkF=G%#~?C%8X?l?SlqbLOh`5;cJ!`w<K4<^b~TIkQ0j5m^TGwd6eV_;1K6NHsqx0ye"
    b">m`E3P%b0%LCL`-M}_s7+%CCSl`A<iCx-@ZwY)60hac0|@6fbV+dNx_?0I&M8W9R^zLLnQwb7P$;0_>5TLJvxguZ&5orMn9uJ13BKX4zCv=!*_ssRXPg"
    b"$^4LE5s>I+i`ir@no`-fk%9h!t@8kYWe9ywJA1?p-u2YBvi_aF_Dt~#-Do<yX9N+B;+2v{P5YBbjWngxeV^s29VaHmuPfTfdfpB?*Z%(3O{9iKTI@(B!"
    b"m@CKlf+CL}?-w|>kYij&o8r*}h}m;?lIBZemW};Y-%;z`A^SzmUMpVe>GjU3I)6AzPNVP$Z^uyPcFFSCr~R>&S10i50s)@#_1;eNmGegn($w*ZeU$4yc"
    b"|pE9@Utv_$k7dOwjVd65w|<dxL)~M(4}i8w)1_+UMI;9QN<U51?v+K+xvEDhg`_VBBC}WUv~1HkJ?<~p<sFQQR8ekQL%H)y$!vji`8lC*Qc&skZLV;*z"
    b"S~3JLkzqi)pUYFPh!1o+SOS<GE?Z=ebuNb{SoI7M1R}b@)(3rCZyn3p+V`Jqj$gQzYU3d<B{M9Q~LsO6@y_+I0>ii)KKB`C?z-yNVbI^9Xq+TjWl)-In"
    b"BTC5&7jvt)nQc0~6XJaV&;fsadPb3bD2U7Sx6=^Y0)mM@>`?ID*sx&pV;8T4X1$045_2I%Hj=r!ZLdmh?8g7F8;CF?6<RdeET+`SC>UXv3NW6~4yyQ1C"
    b"4CRQ#Z>$`NX`K?(&Z~1F<m@i4cz}>(pbO~Jl6YxzaB_lap13f>v(F*QdZfDYiIO>XwFjXCVnz)u_b%r?GgWk#tbt2<?sEtVIV3c{zgSs7fyDP6V(11sH"
    b"?Bij+0ts28CZuX$T?QWe;fWO8(jM$^6f>(4r!;s!QK>7i0Bcs2CnseCzYWO4x*fuI4O|xSTnFvvMVbyg>vfz5tqoFSxGu|X4a~GrH)iS6_}v4FG9+5Y?"
    b"z5QLz;_PRP0;4p<0zh5*tZR;8F;7<zh$!XJmyNm{VwUDtDtD(+85ob=pFZ}-t6};Lt>_E%Zk0ASOKSXta%vRZlh0NXP##Z7)a6veH~f242c&YGw-*CQM"
    b"S=6dQt+Fk^PN)5?#rjvued8_=BU@)1^YiBdI)9z&#a985uD$R}vcL<~cQR$2$7B;yuc;qM;tl<f$YU<=>W|mWwB=v@MA-XSW$VRfM;vVM*p9IlWfCMm2"
    b"?hP2-`Yt17ZvMdr(bm8D<{mZUCUZv`ixk(D#J%hXB@%^K!8AMtF_LD8-eB8cfYHh6WlAY~GyGHN6D+)!VYB!5f6{%(&&d8&sDtxJBE)S4;u^}BM;X85f"
    b"MYVurH`<I&Rk>R&0)OBP+D!JQ`%&@?uN|3M;V#C#zvLZx9EzuSk+>G;KS8U_)rluItl!&krMKj{zhVafrf;yh|;IpdMWt4F~ar$$Xx25w<R6DD)b0VD;"
    b"J8%bHk{q=Ww(XZZVEpMy^zfU8E@YUKcTAaBsVlr3&N<vK>t0sya#bu@mt7mkQ44M@L5*A^hwFf=v3s!U9?_(UtB+Ymk~VnlMUKu&ELpK-E>a%>EuWCNB"
    b"bfv3GB6>*s6#u)As5tOly2dv7jlm6*_Fs>g15`+Mc_djGIS7;@%b;67%oeE<}%ijNG*%a{oDy?munPqqzt<VtJ#%655NB8*!pFuBbjvHZiIJE#ozpN*0"
    b"_~D)xVBi4$1wtqEAbCcf_}4$q9#I!@jr!4b#w-y4hzyy%F^toO4!sj9jEYYbMERCtBg8uHne(39_d;vZ1!gr|Mn>?Q)QGID5vLh-cinGxrUpPQ?zRoud"
    b"^$loj*5HLO&TQs}LmN6Wg#_k;c5E%#<NQ;SxyemUUh(2j0xPyC$*>sM6H;~^5ped5NlNJbM;b`<{{x(&T*#5$$O|0bZ!QnaR`va;l*u%7X&DknTk=Zux"
    b"eiqC6)uOvjm3?d~_EmFjC60{!5W5u>rt#UQtbV}+g_g_Wt_!wgxI%DIQaCRw1#ptY$v|J>y>ML)xz93XdvZFE~i>>ylqjM)sE1Yp-uO>3$c4Ud3#(gfG"
    b"M;wceb}jgSc=p?t9V)UX=WHh4Se8hu)0v4G#uoRQFX(k3KC{{<*EEKmkDSKL`Q*r|p~e$3cHZUkdeGF#d{{KKf@>x13rbOh`4e&_@_!cM*`KH~nfrRkq"
    b"@KLXu~HRQF*}3Y;wsu6;g)FxC2HYH;8sO9Z^m-TzqRnsKFWttZ=_C)$E=fiORzSJyk^6jv}&OB(a@DzT@Q#qFu9Cmh{a0uzGIj>iN<28eN!5^@mmUaZi"
    b"^8r(TM6rcJ~}F!Z%6qd|lqb!Hzb@AsckC1$}wVie5d=Zx@itNl}q%okZy5tm<V<3M>2@%%VTGG%KAfD<eK*nN~HQ*&1~^WlZ4V{FWB*(IHIiSyQlDM^7"
    b"`J+WDR3h%IZTqHIySacxKU?x>GOXNK{%RX95g(RY;hVnAq9s8va!f^;<w+*m64=|@hQq2<}OHDr36PfjBz$6h^8IuxFiPr1b1t-Zb|SyPSn$bnF)o(!$"
    b"f^t5Jr4QnB<Ye9aN^JzOo-aJH~$InIdcdbz29qzevmaAi_%FSa-(j)pl;hg*)lt^$DvWoMd!@OsWQQJDZ72ll~t88ECl3)vu6WdXh<^MHCF{l(p#9sA("
    b"8hQz5ffG_2GTF;$*2dmT#GWO28{qIWQJ=aK)w9NVZALv=72K(y?w(Xj<l+ATqrRw(<m;mBl4%a6Vz~r8wSPC|(8fsZZ_2(ootPi3G+C$@`PBX}2{C2^)"
    b"+K_)iF!1f+AAK^`Zvz|f^l7DBb-{@zZ2*5|7&N1j>b)~1`M$-?opc38xLhQdKz>1m`Yvc6VCQn{qBUmmn%bOf*pM2X^p&Tc9O4&C#UtwOn>`0PwUQbCc"
    b"KUIRo8@7B|R_1eO@I*h7CQgN9ewIIerVg9rWst*s3HQe}c2z6K43IOB4B6AHgBVzprOBqd2rx=sSJpq+;*RuJMR@#Ry*xIlZNskjhzjh)lk=vtCQmOS<"
    b"=Bh8!Yoo0;&2zaA<xXToaes|F+gKlt8xX#%47ZgKc8i_5QpoOb(#|4i0HMZ93AMFOMScziircG4bFOL{rhgpQxj3w2p4#;rQVZ<t)qU+LJ%!u@+6$3n3"
    b"q$P4|Ms{t2-H&W3$4QR;LUzhmt=$Xh{;uvWT?x1^1yY!yidGtDn*$Xs@%XlvRACeqL>;"
)
