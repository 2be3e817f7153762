import { useData, useRoute } from 'vitepress'
import { nextTick, onMounted, watch } from 'vue'

/** Draws the diagrams of each page in the colours of the theme. Without scripts, or when it fails, their code stays readable. */
export function watchPictures(): void {
  const { isDark } = useData()
  const route = useRoute()
  const draw = () => nextTick(() => drawPictures(isDark.value))
  onMounted(draw)
  watch([() => route.path, isDark], draw)
}

async function drawPictures(dark: boolean): Promise<void> {
  const pictures = document.querySelectorAll<HTMLElement>('pre.picture')
  if (pictures.length === 0) return
  const { default: mermaid } = await import('mermaid')
  mermaid.initialize({ startOnLoad: false, securityLevel: 'strict', theme: dark ? 'dark' : 'neutral' })
  for (const [index, picture] of pictures.entries()) {
    picture.dataset.code ??= picture.textContent ?? ''
    const { svg } = await mermaid.render(`picture-${index}`, picture.dataset.code)
    picture.innerHTML = svg
  }
}
