import type { Theme } from 'vitepress'
import DefaultTheme from 'vitepress/theme'
import { watchPictures } from './pictures.ts'

export default {
  extends: DefaultTheme,
  setup: watchPictures,
} satisfies Theme
